"""Which positions influence which: measured by changing one and looking at the others."""
