"""Reading the kernel log and recognising what it says about memory."""
