"""Floor 6: gradients, whatever framework has made them."""
