"""Devices, and what runs on them: Programs and Buffers, nothing above. Read `device.py` first."""
