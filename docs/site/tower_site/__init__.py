"""What makes the site: Sphinx's extension of that name (tower_site.extension), and what writes its sources.

headers.py     the public headers, read as text, and the pages of the C++ API made of them
packages.py    torch_tower, read as text, and the pages of the Python API
comments.py    comments and docstrings as reStructuredText
stage.py       the folder that Sphinx reads: documents, tutorials, pages of the API, figures
extension.py   what Sphinx cannot: pages of sources, links from names to the API, the index that search reads
"""
