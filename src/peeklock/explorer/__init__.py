"""The explorer: the page at `/` of the HTTP port that shows entities and messages in a browser.

It owns the files below `page/` and the headers that go with them. It knows no socket and no figure: the page
asks the documented JSON API for all that it shows. `README.md` says how a view is written.

files   The files of the page: their addresses, content, validators and headers.
joined  The modules of the first view as one file.
"""
