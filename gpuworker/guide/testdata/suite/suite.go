// Package suite pins the module whose files have the JSON Schema test suite. Only its testdata is read, so
// the module is a requirement of nothing that is built.
package suite

import _ "github.com/google/jsonschema-go/jsonschema" // the module of the suite
