"""What everything else uses: errors, options, text, units, dtypes, sizes, tensor files, the process."""
