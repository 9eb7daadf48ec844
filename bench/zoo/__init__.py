"""The models of examples/zoo beside other libraries."""
