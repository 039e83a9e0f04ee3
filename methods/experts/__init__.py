"""Gates, routing and the clustering that methods with several experts share."""
