package jinja

import "strconv"

// Item is the value of a key.
func Item(v Value, key string) (Value, bool) { return v.(*Dict).text(key) }

// Number reads a number of JSON.
func Number(text string) (Value, error) {
	if n, ok := readInteger(text, 10); ok {
		return n, nil
	}
	return strconv.ParseFloat(text, 64)
}
