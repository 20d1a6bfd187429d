package console

import (
	_ "embed" // for the files of the page
	"net/http"
)

// The page. Its scripts have no dependencies and are not built.
var (
	//go:embed page/index.html
	indexHTML []byte
	//go:embed page/console.js
	consoleJS []byte
	//go:embed page/parts.js
	partsJS []byte
	//go:embed page/playground.js
	playgroundJS []byte
	//go:embed page/console.css
	consoleCSS []byte
)

// servePage serves the files.
func servePage(mux *http.ServeMux) {
	for path, file := range map[string]struct {
		contentType string
		text        []byte
	}{
		"/{$}":           {"text/html; charset=utf-8", indexHTML},
		"/console.js":    {"text/javascript; charset=utf-8", consoleJS},
		"/parts.js":      {"text/javascript; charset=utf-8", partsJS},
		"/playground.js": {"text/javascript; charset=utf-8", playgroundJS},
		"/console.css":   {"text/css; charset=utf-8", consoleCSS},
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", file.contentType)
			_, _ = w.Write(file.text) // the client may be gone
		})
	}
	// Browsers request it, and report a missing one.
	mux.HandleFunc("GET /favicon.ico", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
}
