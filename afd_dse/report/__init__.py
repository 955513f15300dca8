"""Pages and figures from the document of a result; nothing here knows how it was found."""
