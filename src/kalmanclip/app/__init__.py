"""A page in the browser over one adapter: look at pictures, see how sure it is, teach it more.

`service` holds the adapter that several people use at once, `images` what they upload, `render` turns answers into
HTML; none of these needs Gradio. `page` puts them on a page, and `server` and `middleware` serve it.
"""
