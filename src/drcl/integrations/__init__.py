"""DRCL inside trainers of others. Each module imports the library that it serves; none is imported by drcl itself."""
