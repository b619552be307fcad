// Render every formula that pymdownx.arithmatex (generic mode) left in the page:
// <span class="arithmatex">\(...\)</span> inline, <div class="arithmatex">\[...\]</div> displayed.
document.addEventListener("DOMContentLoaded", function () {
  document.querySelectorAll(".arithmatex").forEach(function (node) {
    var source = node.textContent.trim();
    var displayed = source.startsWith("\\[");
    katex.render(source.slice(2, -2), node, { displayMode: displayed, throwOnError: false });
  });
});
