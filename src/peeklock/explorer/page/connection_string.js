// Connection strings for programs, as the broker's clients take them.

/** Return the connection string of a key of this broker; `entity` empty = of the namespace. */
export function connectionString(name, key, entity = "") {
  return [
    `Endpoint=sb://${location.host}/`,
    `SharedAccessKeyName=${name}`,
    `SharedAccessKey=${key}`,
    ...(entity ? [`EntityPath=${entity}`] : []),
    ...(location.protocol === "https:" ? [] : ["UseDevelopmentEmulator=true"]),
  ].join(";");
}
