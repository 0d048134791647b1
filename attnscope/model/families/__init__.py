"""Model types: their fields, the kinds of their layers, and the formula of their attention."""
