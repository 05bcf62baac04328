"""Where datasets come from: every kind of storage behind one seam (`seam.Source`)."""
