"""Reading the kernel log and recognising what it says about memory.

`framing` strips what dmesg, journalctl or syslog put before a message, `parser` turns records into OOM events, `reader`
follows /dev/kmsg. The daemon carries all of it for life: nothing here imports more than the small standard modules.
"""
