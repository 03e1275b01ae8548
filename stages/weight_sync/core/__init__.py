"""What weight-sync decides, without files or clocks."""
