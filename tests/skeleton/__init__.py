"""The walking skeleton: the whole loop with a real broker and stages whose work is a few lines each. No torch, no model."""
