"""DRCL inside the trainers of other libraries. Each module imports its library; drcl itself imports none of them."""
