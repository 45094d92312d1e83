"""From run directories to tables, figures and a page."""
