"""What is asked, what the host offers, and what will be done."""
