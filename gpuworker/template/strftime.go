package template

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/gpuworker/template/jinja"
)

// strftimeNow returns the function strftime_now(format) for a fixed time.
func strftimeNow(now time.Time) jinja.Value {
	return jinja.NewFunction("strftime_now", []string{"format"}, func(args []jinja.Value) (jinja.Value, error) {
		format, ok := args[0].(string)
		if !ok {
			return nil, errors.New("it takes a format, which is a string")
		}
		if now.IsZero() {
			return nil, errors.New("the caller gave no time")
		}
		return strftime(now, format)
	})
}

// layouts are the directives that Go's time package can format.
var layouts = map[byte]string{
	'Y': "2006", 'y': "06", 'm': "01", 'b': "Jan", 'h': "Jan", 'B': "January", 'd': "02", 'e': "_2", 'a': "Mon", 'A': "Monday",
	'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'j': "002", 'Z': "MST", 'z': "-0700", 'f': "000000",
	'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'c': "Mon Jan _2 15:04:05 2006", 'x': "01/02/06", 'X': "15:04:05",
}

// strftime formats a time like C and Python; %-d and similar omit padding.
func strftime(t time.Time, format string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			out.WriteByte(format[i])
			continue
		}
		i++
		bare := i < len(format) && format[i] == '-'
		if bare {
			i++
		}
		if i == len(format) {
			return "", fmt.Errorf("the format %q ends in the middle", format)
		}
		var text string
		switch c := format[i]; {
		case c == '%':
			text = "%"
		case c == 'n':
			text = "\n"
		case c == 't':
			text = "\t"
		case c == 's':
			text = fmt.Sprint(t.Unix())
		case c == 'u':
			text = fmt.Sprint((int(t.Weekday())+6)%7 + 1)
		case c == 'w':
			text = fmt.Sprint(int(t.Weekday()))
		case c == 'f':
			text = fmt.Sprintf("%06d", t.Nanosecond()/1000)
		case layouts[c] != "":
			text = t.Format(layouts[c])
		default:
			return "", fmt.Errorf("unknown directive %%%c in %q", c, format)
		}
		if bare {
			if text = strings.TrimLeft(text, "0 "); text == "" {
				text = "0"
			}
		}
		out.WriteString(text)
	}
	return out.String(), nil
}
