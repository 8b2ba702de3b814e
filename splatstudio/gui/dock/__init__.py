"""What is always visible beside the tabs: the main buttons and the bars of what is going on."""
