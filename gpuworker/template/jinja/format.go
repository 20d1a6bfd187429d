package jinja

import (
	"regexp"
	"strings"
)

var (
	fieldPattern = regexp.MustCompile(`^([^.\[!:{}]*)((?:\.[^.\[!:{}]+|\[[^\]]+\])*)(?:!([rsa]))?(?::([^{}]*))?$`)
	partPattern  = regexp.MustCompile(`\.([^.\[]+)|\[([^\]]+)\]`)
)

// format is Python's method format of a string: fields in braces, by place or name.
func (r *run) format(format str, a *callArguments) str {
	out := r.buffer()
	auto, placed := 0, false
	whole := format.text
	for s := whole; s != ""; {
		from, pos := len(whole)-len(s), strings.IndexAny(s, "{}")
		if pos < 0 {
			out.write(format.slice(from, len(whole)))
			break
		}
		out.write(format.slice(from, from+pos))
		if pos+1 < len(s) && s[pos+1] == s[pos] {
			out.write(format.slice(from+pos, from+pos+1))
			s = s[pos+2:]
			continue
		}
		end := strings.IndexByte(s[pos:], '}')
		if s[pos] == '}' || end < 0 {
			r.fail("a single %q in a format string", s[pos])
		}
		m := fieldPattern.FindStringSubmatch(s[pos+1 : pos+end])
		if m == nil {
			r.fail("the field %.40q of a format string is not supported", s[pos:pos+end+1])
		}
		s = s[pos+end+1:]
		var v Value
		if m[1] == "" {
			v = r.placed(a, auto)
			auto++
		} else if key, ok := pathKey(m[1]).(int); ok {
			v = r.placed(a, key)
			placed = true
		} else {
			v = r.namedArgument(a, m[1])
		}
		if auto > 0 && placed {
			r.fail("a format string mixes fields with numbers and without")
		}
		out.write(r.field(v, m[2], m[3], str{m[4], format.originOf()}))
	}
	return out.str()
}

func (r *run) placed(a *callArguments, i int) Value {
	if i >= len(a.placed) {
		r.fail("Replacement index %d out of range for positional args tuple", i)
	}
	return a.placed[i]
}

func (r *run) namedArgument(a *callArguments, name string) Value {
	for i, n := range a.names {
		if n == name {
			return a.named[i]
		}
	}
	r.fail("the format string names %q, which is no argument", name)
	return nil
}

// field writes a value's part, converted and by its specifier.
func (r *run) field(v Value, path, conversion string, by str) str {
	for _, part := range partPattern.FindAllStringSubmatch(path, -1) {
		if part[1] != "" {
			v = r.attribute(v, part[1])
		} else {
			v = r.subscript(v, pathKey(part[2]))
		}
	}
	switch conversion {
	case "a":
		r.fail("!a in a format string is not supported")
	case "r":
		v = r.repr(v)
	case "s":
		v = r.text(v)
	}
	return r.formatted(v, by)
}
