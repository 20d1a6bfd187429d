package jinja

import (
	"math"
	"math/big"
	"strconv"
	"strings"
)

func filterAbs(r *run, v Value, _ []Value) Value {
	if f, ok := v.(float64); ok {
		return math.Abs(f)
	}
	if !isNumber(v) {
		r.defined(v)
		r.fail("bad operand type for abs(): '%s'", typeName(v))
	}
	n, _ := bigInteger(v)
	return whole(new(big.Int).Abs(n))
}

// filterInt parses a number and returns the default for anything else.
func filterInt(r *run, v Value, a []Value) Value {
	otherwise, base := or(a[0], 0), r.whole(a[1], 10)
	if base < 2 || base > 36 {
		r.fail("int: a base of %d is not supported", base)
	}
	r.defined(v)
	if s, ok := plainOf(v); ok {
		if n, ok := readInteger(s, base); ok {
			return n
		}
		f, ok := readFloat(s)
		if !ok || math.IsInf(f, 0) {
			return otherwise
		}
		v = f
	}
	if f, ok := v.(float64); ok {
		if math.IsNaN(f) || math.IsInf(f, 0) {
			if math.IsNaN(f) {
				return otherwise
			}
			r.fail("cannot convert float infinity to integer")
		}
		n, _ := big.NewFloat(f).Int(nil)
		return whole(n)
	}
	if n, ok := bigInteger(v); ok {
		return whole(n)
	}
	return otherwise
}

// readInteger is Python's int of a string.
func readInteger(s string, base int) (Value, bool) {
	s = strings.TrimFunc(s, isSpace)
	sign := ""
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign, s = s[:1], s[1:]
	}
	if prefix, ok := map[int]string{2: "0b", 8: "0o", 16: "0x"}[base]; ok && len(s) > 2 && strings.EqualFold(s[:2], prefix) {
		s = strings.TrimPrefix(s[2:], "_")
	}
	if s == "" || s[0] == '_' || strings.HasSuffix(s, "_") || strings.Contains(s, "__") || len(s) > maxDigits {
		return nil, false
	}
	s = strings.ReplaceAll(s, "_", "")
	if s[0] == '-' || s[0] == '+' {
		return nil, false
	}
	n, ok := new(big.Int).SetString(sign+s, base)
	if !ok {
		return nil, false
	}
	return whole(n), true
}

func filterFloat(r *run, v Value, a []Value) Value {
	otherwise := or(a[0], 0.0)
	r.defined(v)
	if s, ok := plainOf(v); ok {
		if f, ok := readFloat(s); ok {
			return f
		}
		return otherwise
	}
	if isNumber(v) {
		return r.float(v)
	}
	return otherwise
}

// readFloat is Python's float of a string.
func readFloat(s string) (float64, bool) {
	s = strings.TrimFunc(s, isSpace)
	if strings.ContainsAny(s, "xXpP") || strings.HasPrefix(s, "_") || strings.HasSuffix(s, "_") || strings.Contains(s, "__") {
		return 0, false
	}
	if strings.EqualFold(strings.TrimLeft(s, "+-"), "nan") && len(s) <= len("-nan") {
		return math.NaN(), true
	}
	f, err := strconv.ParseFloat(strings.ReplaceAll(s, "_", ""), 64)
	if err != nil && !math.IsInf(f, 0) {
		return 0, false
	}
	return f, true
}

func filterRound(r *run, v Value, a []Value) Value {
	precision := r.whole(a[0], 0)
	method := r.string(or(a[1], own("common")), "round: the method")
	if method != "common" && method != "ceil" && method != "floor" {
		r.fail("round: the method must be common, ceil or floor, not %q", method)
	}
	if !isNumber(v) {
		r.defined(v)
		r.fail("type %s doesn't define __round__ method", typeName(v))
	}
	if precision < 0 || precision > 300 {
		r.fail("round: a precision of %d is not supported", precision)
	}
	if method == "common" {
		f, ok := v.(float64)
		if !ok {
			n, _ := bigInteger(v)
			return whole(n)
		}
		if math.IsNaN(f) || math.IsInf(f, 0) {
			return f
		}
		f, _ = strconv.ParseFloat(strconv.FormatFloat(f, 'f', precision, 64), 64) // half to even, exactly
		return f
	}
	scale := math.Pow(10, float64(precision))
	scaled := r.float(v) * scale
	if math.IsNaN(scaled) || math.IsInf(scaled, 0) {
		r.fail("round: %v cannot be made a whole number", scaled)
	}
	if method == "ceil" {
		return math.Ceil(scaled) / scale
	}
	return math.Floor(scaled) / scale
}

// filterSum adds all items to a start.
func filterSum(r *run, v Value, a []Value) Value {
	total := or(a[1], 0)
	if _, ok := textOf(total); ok {
		r.fail("sum() can't sum strings [use ''.join(seq) instead]")
	}
	next := r.iterate(v)
	for item, ok := next(); ok; item, ok = next() {
		r.step(1)
		if given(a[0]) && a[0] != nil {
			item = r.path(item, a[0], nil)
		}
		total = r.binary("+", total, item)
	}
	return total
}
