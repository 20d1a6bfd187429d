package monitor

import "github.com/millrace/millrace/services/internal/flood"

// Rest is the label value that stands for all names beyond a bound.
const Rest = "(other)"

// Text is a label value for any bytes; see flood.Clip.
func Text(s string) string { return flood.Clip(s) }
