// Package strictjson decodes JSON requests into typed structs and refuses everything that it would
// otherwise have to ignore.
//
// Decode fills a struct by the names in its json tags. It refuses an unknown field, a duplicate
// field, a value of another type, text that is not Unicode, and nesting or lists beyond its limits.
// Every error names the JSON path, for example messages[3].content, because OpenAI's errors have a
// field for it. A type that accepts several shapes, such as a string or a list of strings,
// implements Value.
//
// encoding/json does none of this: it accepts duplicate fields and other letter cases, replaces
// invalid text, and reports an unknown field without its path.
//
// The package defines no request and writes no HTTP response.
package strictjson
