"""Published results of the literature, answered by the package's general functions and compared row by row."""
