"""A plan to look at: one page of HTML that needs no network, drawn by Bokeh.

data      what the page shows, as figures
segments  the bars' parts: each table on each device, the small ones together
charts    charts of cost and memory
bars      what a device's row in them consists of
lists     tables and moves to sort and filter
scripts   what the page does in the browser
page      all of it as one file

Bokeh is imported by what draws alone: `data` is quick to import.
"""
