"""How values look to people, once for commands, pages and notebooks: units and colours."""
