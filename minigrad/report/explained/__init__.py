"""`explain`: a report of a step as a page of HTML, and as JSON."""
