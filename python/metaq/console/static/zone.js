// The server renders times in the reader's zone, which it knows by a cookie. A page that it has rendered in another
// zone is loaded again, unless the browser keeps no cookies.
const base = document.documentElement.dataset.base;
const readCookie = () => document.cookie.split("; ").find((part) => part.startsWith("metaq-utc-offset="));
const zone = `metaq-utc-offset=${-new Date().getTimezoneOffset()}`;
const rendered = readCookie() ?? "metaq-utc-offset=0";

document.cookie = `${zone}; path=${base || "/"}; samesite=lax; max-age=31536000`;
if (rendered !== zone && readCookie() === zone) location.reload();
