package monitor

import "github.com/millrace/millrace/services/internal/ratelog"

// Rest is the label value of all names beyond a bound.
const Rest = "(other)"

// Text returns a label value for any bytes; see ratelog.Clip.
func Text(s string) string { return ratelog.Clip(s) }
