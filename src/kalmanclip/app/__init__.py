"""A page in the browser over one adapter: look at pictures, see how sure it is, teach it more.

`answers` says what is known about a picture, `live` guards the adapter that several people use at once, `render` turns
both into HTML; none of these needs Gradio. `page` puts them on a page, and `serve` and `doors` let the browser in.
"""
