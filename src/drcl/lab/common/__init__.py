"""What every room of the laboratory uses: seeds, options by name, words, several processes."""
