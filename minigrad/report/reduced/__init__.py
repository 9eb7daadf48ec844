"""`reduce`: the least program whose result differs from that of the NUMPY device."""
