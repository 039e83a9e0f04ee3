"""One way to draw: what a picture shows is a value, and the same values give the same bytes."""
