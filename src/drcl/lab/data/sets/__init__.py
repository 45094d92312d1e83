"""One file per data set; every module here is imported and registers itself."""
