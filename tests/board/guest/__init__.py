"""What runs inside the virtual board; standard library only."""
