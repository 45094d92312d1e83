"""The commands of ``drcl``, one file a family; each is a thin face on a function of the laboratory."""
