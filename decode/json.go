package decode

import (
	"unicode/utf16"
	"unicode/utf8"
)

// maxDepth of a JSON value, as encoding/json has it.
const maxDepth = 10000

// These scan JSON as RFC 8259 defines it. Each takes the text and where to begin,
// and returns where the scanned piece ends; -1 = it is not JSON.

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// skipString scans a string that begins behind its quote, and ends behind the
// other one. escaped says that it holds a backslash.
func skipString(b []byte, i int) (end int, escaped bool) {
	for i < len(b) {
		switch c := b[i]; {
		case c == '"':
			return i + 1, escaped
		case c < ' ':
			return -1, escaped
		case c == '\\':
			escaped = true
			if i+1 >= len(b) {
				return -1, escaped
			}
			switch b[i+1] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				i += 2
			case 'u':
				if hex4(b, i+2) < 0 {
					return -1, escaped
				}
				i += 6
			default:
				return -1, escaped
			}
		default:
			i++
		}
	}
	return -1, escaped
}

func skipValue(b []byte, i, depth int) int {
	if i >= len(b) || depth > maxDepth {
		return -1
	}
	switch b[i] {
	case '"':
		end, _ := skipString(b, i+1)
		return end
	case '{':
		return skipMembers(b, i+1, depth, true)
	case '[':
		return skipMembers(b, i+1, depth, false)
	case 't':
		return skipWord(b, i, "true")
	case 'f':
		return skipWord(b, i, "false")
	case 'n':
		return skipWord(b, i, "null")
	}
	return skipNumber(b, i)
}

// skipMembers scans the inside of an object, or of an array.
func skipMembers(b []byte, i, depth int, object bool) int {
	closing := byte(']')
	if object {
		closing = '}'
	}
	if i = skipSpace(b, i); i < len(b) && b[i] == closing {
		return i + 1
	}
	for {
		if object {
			if i = skipName(b, i); i < 0 {
				return -1
			}
		}
		if i = skipValue(b, i, depth+1); i < 0 {
			return -1
		}
		i = skipSpace(b, i)
		if i >= len(b) {
			return -1
		}
		if b[i] == closing {
			return i + 1
		}
		if b[i] != ',' {
			return -1
		}
		i = skipSpace(b, i+1)
	}
}

// skipName scans a member's name with the colon and space behind it.
func skipName(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	if i, _ = skipString(b, i+1); i < 0 {
		return -1
	}
	return skipColon(b, i)
}

func skipColon(b []byte, i int) int {
	i = skipSpace(b, i)
	if i >= len(b) || b[i] != ':' {
		return -1
	}
	return skipSpace(b, i+1)
}

func skipWord(b []byte, i int, word string) int {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return -1
	}
	return i + len(word)
}

func skipNumber(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	if i < len(b) && b[i] == '0' {
		i++
	} else if i = skipDigits(b, i); i < 0 {
		return -1
	}
	if i < len(b) && b[i] == '.' {
		if i = skipDigits(b, i+1); i < 0 {
			return -1
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		i++
		if i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return skipDigits(b, i)
	}
	return i
}

func skipDigits(b []byte, i int) int {
	start := i
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	if i == start {
		return -1
	}
	return i
}

// unescape writes a string that skipString has accepted to dst, which it never
// makes longer than src. A surrogate without its other half becomes U+FFFD, as in
// encoding/json.
func unescape(dst, src []byte) []byte {
	for i := 0; i < len(src); {
		c := src[i]
		if c != '\\' {
			dst = append(dst, c)
			i++
			continue
		}
		c = src[i+1]
		i += 2
		switch c {
		case 'b':
			dst = append(dst, '\b')
		case 'f':
			dst = append(dst, '\f')
		case 'n':
			dst = append(dst, '\n')
		case 'r':
			dst = append(dst, '\r')
		case 't':
			dst = append(dst, '\t')
		case 'u':
			r := hex4(src, i)
			i += 4
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if i+1 < len(src) && src[i] == '\\' && src[i+1] == 'u' {
					low = hex4(src, i+2)
				}
				if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
					i += 6
				}
			}
			dst = utf8.AppendRune(dst, r)
		default: // the character itself
			dst = append(dst, c)
		}
	}
	return dst
}

// hex4 reads four hex digits at i; -1 = they are not there.
func hex4(b []byte, i int) rune {
	if len(b)-i < 4 {
		return -1
	}
	r := rune(0)
	for _, c := range b[i : i+4] {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return -1
		}
		r = r<<4 | rune(c)
	}
	return r
}
