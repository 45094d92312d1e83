"""One file a data set; every module here is imported and registers itself."""
