"""Scripts around the library: training, measurements, corpora. Gin and data live here."""
