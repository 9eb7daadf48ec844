"""PyTorch's own table of operations, OpInfo, run against minigrad: its sample inputs, gradients and invalid inputs.

    python test/opinfo --op softmax --dtype float32 --grad 2

`counterparts.py` finds what stands for an entry here, `convert.py` takes arguments there and results back, `compare.py`
says what counts as equal, `check.py` runs the samples of one entry, `report.py` adds them up. It needs torch and
expecttest.
"""
