package jinja

import (
	"math"
	"math/big"
	"math/bits"
)

// maxBits bounds whole numbers, so that powers and products end.
const maxBits = 1 << 14

// whole makes an int of a big one that fits.
func whole(n *big.Int) Value {
	if n.IsInt64() {
		return int(n.Int64())
	}
	return n
}

// integer returns a bool or int as a number.
func integer(v Value) (int, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int:
		return v, true
	}
	return 0, false
}

// bigInteger returns any whole number.
func bigInteger(v Value) (*big.Int, bool) {
	if n, ok := v.(*big.Int); ok {
		return n, true
	}
	n, ok := integer(v)
	return big.NewInt(int64(n)), ok
}

func isNumber(v Value) bool {
	switch v.(type) {
	case bool, int, *big.Int, float64:
		return true
	}
	return false
}

// float returns a number as a float64.
func (r *run) float(v Value) float64 {
	if f, ok := v.(float64); ok {
		return f
	}
	n, _ := bigInteger(v)
	f, _ := new(big.Float).SetInt(n).Float64()
	if math.IsInf(f, 0) {
		r.fail("int too large to convert to float")
	}
	return f
}

// arithmetic evaluates an operator on two numbers.
func (r *run) arithmetic(op string, a, b Value) Value {
	x, small := integer(a)
	y, also := integer(b)
	if small && also {
		if v, ok := smallArithmetic(op, x, y); ok {
			return v
		}
	}
	_, floatA := a.(float64)
	_, floatB := b.(float64)
	if floatA || floatB {
		return r.floatArithmetic(op, r.float(a), r.float(b))
	}
	m, _ := bigInteger(a)
	n, _ := bigInteger(b)
	return r.bigArithmetic(op, m, n)
}

// smallArithmetic is the fast path for frequent operations that do not overflow.
func smallArithmetic(op string, x, y int) (Value, bool) {
	switch op {
	case "+":
		sum := x + y
		return sum, (sum > x) == (y > 0)
	case "-":
		difference := x - y
		return difference, (difference < x) == (y > 0)
	case "*":
		hi, lo := bits.Mul64(uint64(max(x, -x)), uint64(max(y, -y)))
		return x * y, hi == 0 && lo < math.MaxInt64
	case "%":
		if y > 0 {
			return (x%y + y) % y, true
		}
	}
	return nil, false
}

func (r *run) bigArithmetic(op string, m, n *big.Int) Value {
	out := new(big.Int)
	if n.Sign() == 0 && (op == "/" || op == "//" || op == "%") {
		r.fail("%s by zero", map[string]string{"/": "division", "//": "integer division or modulo", "%": "integer modulo"}[op])
	}
	switch op {
	case "+":
		out.Add(m, n)
	case "-":
		out.Sub(m, n)
	case "*":
		r.bits(m.BitLen() + n.BitLen())
		out.Mul(m, n)
	case "/":
		if m.Sign() == 0 {
			return 0 / r.float(whole(n)) // with the sign of the divisor
		}
		f, _ := new(big.Rat).SetFrac(m, n).Float64()
		if math.IsInf(f, 0) {
			r.fail("integer division result too large for a float")
		}
		return f
	case "//", "%":
		// Python rounds down, and the remainder has the sign of the divisor.
		quotient, rest := out.QuoRem(m, n, new(big.Int))
		if rest.Sign() != 0 && rest.Sign() != n.Sign() {
			quotient.Sub(quotient, big.NewInt(1))
			rest.Add(rest, n)
		}
		if op == "%" {
			out = rest
		}
	case "**":
		if n.Sign() < 0 {
			return r.floatArithmetic(op, r.float(whole(m)), r.float(whole(n)))
		}
		if m.BitLen() > 1 {
			if !n.IsInt64() || n.Int64() > maxBits {
				r.bits(math.MaxInt)
			}
			r.bits((m.BitLen() - 1) * int(n.Int64()))
		}
		out.Exp(m, n, nil)
		if m.BitLen() <= 1 && m.Sign() < 0 && n.Bit(0) == 0 {
			out.SetInt64(1)
		}
	}
	r.bits(out.BitLen())
	return whole(out)
}

func (r *run) bits(n int) {
	if n > maxBits {
		exceedAt(r.line, "a whole number of more than %d bits", maxBits)
	}
}

func (r *run) floatArithmetic(op string, x, y float64) Value {
	if y == 0 && (op == "/" || op == "//" || op == "%") {
		r.fail("%s by zero", map[string]string{"/": "float division", "//": "float floor division", "%": "float modulo"}[op])
	}
	switch op {
	case "+":
		return x + y
	case "-":
		return x - y
	case "*":
		return x * y
	case "/":
		return x / y
	case "//":
		quotient, _ := floorDivide(x, y)
		return quotient
	case "%":
		_, rest := floorDivide(x, y)
		return rest
	}
	switch {
	case x == 0 && y < 0:
		r.fail("0.0 cannot be raised to a negative power")
	case x < 0 && y != math.Trunc(y) && !math.IsInf(x, 0) && !math.IsInf(y, 0):
		r.fail("complex numbers are not supported: %v ** %v", x, y)
	}
	power := math.Pow(x, y)
	if math.IsInf(power, 0) && !math.IsInf(x, 0) && !math.IsInf(y, 0) {
		r.fail("the power %v ** %v is too large", x, y)
	}
	return power
}

// floorDivide divides and rounds down; the remainder has the sign of the divisor.
func floorDivide(x, y float64) (quotient, rest float64) {
	rest = math.Mod(x, y)
	quotient = (x - rest) / y
	switch {
	case rest == 0:
		rest = math.Copysign(0, y)
	case (y < 0) != (rest < 0):
		rest += y
		quotient--
	}
	if quotient == 0 {
		return math.Copysign(0, x/y), rest
	}
	floor := math.Floor(quotient)
	if quotient-floor > 0.5 {
		floor++
	}
	return floor, rest
}

// sign changes the sign of a number, or keeps it.
func (r *run) sign(v Value, minus bool) Value {
	if !isNumber(v) {
		r.defined(v)
		r.fail("bad operand type for unary %s: '%s'", map[bool]string{true: "-", false: "+"}[minus], typeName(v))
	}
	if f, ok := v.(float64); ok {
		if minus {
			f = -f
		}
		return f
	}
	n, _ := bigInteger(v)
	if minus {
		n = new(big.Int).Neg(n)
	}
	return whole(n)
}

// order compares two numbers exactly: -1, 0 or 1; false if one is NaN.
func order(a, b Value) (int, bool) {
	x, small := integer(a)
	y, also := integer(b)
	if small && also {
		return compareInts(x, y), true
	}
	f, floatA := a.(float64)
	g, floatB := b.(float64)
	if floatA && math.IsNaN(f) || floatB && math.IsNaN(g) {
		return 0, false
	}
	if floatA && math.IsInf(f, 0) || floatB && math.IsInf(g, 0) {
		if !floatA {
			f = 0
		}
		if !floatB {
			g = 0
		}
		return compareFloats(f, g), true
	}
	return rational(a).Cmp(rational(b)), true
}

func compareInts(x, y int) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

func compareFloats(x, y float64) int {
	switch {
	case x < y:
		return -1
	case x > y:
		return 1
	}
	return 0
}

// rational is a finite number exactly.
func rational(v Value) *big.Rat {
	if f, ok := v.(float64); ok {
		return new(big.Rat).SetFloat64(f)
	}
	n, _ := bigInteger(v)
	return new(big.Rat).SetInt(n)
}
