package template

import (
	"fmt"
	"strings"
)

// nestConditions rewrites conditional expressions where gonja's parser does not know them: inside brackets, as arguments
// and chained. "x if c else y" becomes "((c) and [x] or [y])[0]", which like the original evaluates one of the two only.
func nestConditions(source string) (string, error) {
	var out strings.Builder
	for source != "" {
		open := strings.IndexByte(source, '{')
		if open < 0 || open+1 == len(source) {
			break
		}
		kind := source[open+1]
		if kind != '{' && kind != '%' && kind != '#' {
			out.WriteString(source[:open+1])
			source = source[open+1:]
			continue
		}
		out.WriteString(source[:open+2])
		source = source[open+2:]
		if kind == '#' {
			end := strings.Index(source, "#}")
			if end < 0 {
				break
			}
			out.WriteString(source[:end])
			source = source[end:]
			continue
		}
		end, err := tagEnd(source, map[byte]string{'{': "}}", '%': "%}"}[kind])
		if err != nil {
			return "", err
		}
		body := source[:end]
		source = source[end:]
		text, err := rewriteTag(body, kind, 0)
		if err != nil {
			return "", err
		}
		out.WriteString(text)
		if kind == '%' && strings.TrimSpace(strings.Trim(body, "-+")) == "raw" {
			skip := strings.Index(source, "endraw")
			if skip < 0 {
				break
			}
			out.WriteString(source[:skip])
			source = source[skip:]
		}
	}
	out.WriteString(source)
	return out.String(), nil
}

// tagEnd returns where a tag ends, which is not inside its strings or braces.
func tagEnd(s, mark string) (int, error) {
	braces := 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '\'' || s[i] == '"':
			i = stringEnd(s, i) - 1
		case braces == 0 && strings.HasPrefix(s[i:], mark):
			return i, nil
		case s[i] == '{':
			braces++
		case s[i] == '}' && braces > 0:
			braces--
		}
	}
	return 0, fmt.Errorf("the template ends inside a tag: %q", shorten(s[:min(len(s), 60)]))
}

// stringEnd returns the end of the string literal that begins at i.
func stringEnd(s string, i int) int {
	for quote, j := s[i], i+1; j < len(s); j++ {
		switch s[j] {
		case '\\':
			j++
		case quote:
			return j + 1
		}
	}
	return len(s)
}

// rewriteTag rewrites what stands between the marks of one tag. A plain condition at its top is gonja's own affair.
func rewriteTag(body string, kind byte, depth int) (string, error) {
	text, err := rewriteBrackets(body, depth)
	if err != nil {
		return "", err
	}
	if kind == '%' {
		if fields := strings.Fields(strings.TrimLeft(text, "-+")); len(fields) == 0 || fields[0] != "set" {
			return text, nil
		}
	}
	parts := splitTop(text, "if")
	if len(parts) < 3 {
		return text, nil
	}
	// Chained: "a if b else c if d else e".
	lead := ""
	if kind == '%' {
		at := assignment(text)
		if at < 0 {
			return text, nil
		}
		lead, text = text[:at+1], text[at+1:]
	}
	core := strings.TrimRight(text, "-+ \t\r\n")
	trail := text[len(core):]
	for core != "" && (core[0] == '-' || core[0] == '+') && lead == "" {
		lead, core = core[:1], core[1:]
	}
	return lead + " " + condition(core) + trail, nil
}

// maxNesting bounds the rewriting of brackets within brackets.
const maxNesting = 200

func rewriteBrackets(s string, depth int) (string, error) {
	if depth > maxNesting {
		return "", fmt.Errorf("brackets are nested more than %d deep", maxNesting)
	}
	var out strings.Builder
	for i := 0; i < len(s); {
		switch c := s[i]; c {
		case '\'', '"':
			end := stringEnd(s, i)
			out.WriteString(s[i:end])
			i = end
		case '(', '[', '{':
			end := bracketEnd(s, i)
			if end < 0 {
				return "", fmt.Errorf("%q has no partner in %q", c, shorten(s))
			}
			inner, err := rewriteBrackets(s[i+1:end], depth+1)
			if err != nil {
				return "", err
			}
			out.WriteByte(c)
			out.WriteString(rewriteItems(inner, c))
			out.WriteByte(s[end])
			i = end + 1
		default:
			out.WriteByte(c)
			i++
		}
	}
	return out.String(), nil
}

// bracketEnd returns the place of the bracket that closes the one at i, or -1.
func bracketEnd(s string, i int) int {
	depth := 0
	for ; i < len(s); i++ {
		switch s[i] {
		case '\'', '"':
			i = stringEnd(s, i) - 1
		case '(', '[', '{':
			depth++
		case ')', ']', '}':
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// rewriteItems rewrites the conditions among the items between two brackets.
func rewriteItems(s string, open byte) string {
	if len(splitTop(s, "if")) < 2 {
		return s
	}
	items := splitTop(s, ",")
	for i, item := range items {
		if len(splitTop(item, "if")) < 2 {
			continue
		}
		name := ""
		if at := assignment(item); open == '(' && at >= 0 {
			name, item = item[:at+1], item[at+1:]
		} else if open == '{' {
			if key := splitTop(item, ":"); len(key) == 2 {
				name, item = key[0]+":", key[1]
			}
		}
		items[i] = name + " " + condition(item)
	}
	return strings.Join(items, ",")
}

// condition rewrites "x if c else y", y being a condition again or missing.
func condition(s string) string {
	parts := splitTop(s, "if")
	if len(parts) < 2 {
		return s
	}
	rest := s[len(parts[0])+len("if"):]
	branches := splitTop(rest, "else")
	alternative := "none"
	if len(branches) > 1 {
		alternative = condition(rest[len(branches[0])+len("else"):])
	}
	return fmt.Sprintf("((%s) and [%s] or [%s])[0]", strings.TrimSpace(branches[0]), strings.TrimSpace(parts[0]), strings.TrimSpace(alternative))
}

// splitTop cuts at a word or a sign outside strings and brackets.
func splitTop(s, mark string) []string {
	var parts []string
	from, depth := 0, 0
	isWord := isNameByte(mark[0])
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\'' || c == '"':
			i = stringEnd(s, i) - 1
		case c == '(' || c == '[' || c == '{':
			depth++
		case c == ')' || c == ']' || c == '}':
			depth--
		case depth == 0 && strings.HasPrefix(s[i:], mark):
			end := i + len(mark)
			if isWord && (i > 0 && isNameByte(s[i-1]) || end < len(s) && isNameByte(s[end])) {
				continue
			}
			parts, from, i = append(parts, s[from:i]), end, end-1
		}
	}
	return append(parts, s[from:])
}

func isNameByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= 0x80
}

// assignment returns the place of the first single = outside strings and brackets, or -1.
func assignment(s string) int {
	depth := 0
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\'' || c == '"':
			i = stringEnd(s, i) - 1
		case c == '(' || c == '[' || c == '{':
			depth++
		case c == ')' || c == ']' || c == '}':
			depth--
		case depth == 0 && c == '=' && i > 0:
			if i+1 < len(s) && s[i+1] == '=' {
				i++
			} else if !strings.ContainsRune("!<>=", rune(s[i-1])) {
				return i
			}
		}
	}
	return -1
}
