"""The interactive page: submit a job, run it, explore and compare what the search found."""
