"""From run directories to something to read: tables, pictures, a page."""
