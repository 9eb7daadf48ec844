"""Plans: how the loops of one nest run, as steps that print, parse and are checked, and the one builder for them."""
